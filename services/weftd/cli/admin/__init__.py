"""Commands of operators: credentials, tenants, quotas, secrets, webhooks, images, the database."""
