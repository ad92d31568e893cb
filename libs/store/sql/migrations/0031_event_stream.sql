-- The stream of events that what is not in `outbox` was published to. A stream that was made anew, or a database that
-- came back as an older copy, is found by it: the events are published again. The scheduler alone writes and reads it.

CREATE TABLE event_stream (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id       text NOT NULL CHECK (length(id) BETWEEN 1 AND 100)
);
GRANT SELECT, INSERT, UPDATE ON event_stream TO weft_scheduler;
