"""One address for every service: queues requests in order of arrival, and sends each to a replica.

Caddy carries the bytes, by one static configuration. For each request it asks the admission process of this service,
which answers with a replica, now or once one is free, or refuses. Any number of routers share the services. The relay
carries the requests that must end with a person's session: it can cut them. The front for models reads which model a
body names.

Takes: EndpointsSeen; ServicesServed: what other routers have at each replica; EventTold: that the store has news.
Sends: ServicesServed, ServiceReported.
Owns:  nothing.
"""
