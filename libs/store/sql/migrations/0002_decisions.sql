-- Every decision with what it was decided from. Written by the scheduler, with the steps that follow; read by the gateway.

CREATE TABLE decisions (
    pool   text NOT NULL,
    epoch  bigint NOT NULL,       -- of the leader's lease
    number integer NOT NULL,      -- counts one leader's records; they may come to be stored in another order
    format integer NOT NULL,      -- of the body
    begins boolean NOT NULL,      -- opens with all that the leader knew
    at     timestamptz NOT NULL,
    until  timestamptz NOT NULL,
    turns  integer NOT NULL,
    steps  integer NOT NULL,
    body   bytea NOT NULL,        -- compressed already
    PRIMARY KEY (pool, epoch, number)
);
ALTER TABLE decisions ALTER COLUMN body SET STORAGE EXTERNAL;

-- Events are added in the order of their time, very nearly: this index costs next to nothing, and finds what was at a time.
CREATE INDEX events_by_time ON events USING brin (at) WITH (autosummarize = on);

GRANT SELECT, INSERT, DELETE ON decisions TO weft_scheduler;
GRANT SELECT ON decisions TO weft_gateway;
