-- How large a history is, and where it may be cut, without reading all of it.
-- A service of an earlier version goes on: it leaves `bytes_until` empty, and what it wrote is counted when it is cut.

ALTER TABLE decisions ADD COLUMN bytes_until bigint;   -- of the bodies of its pool up to this one, those of dropped records included
CREATE INDEX decisions_beginnings ON decisions (pool, epoch, number) WHERE begins;
CREATE INDEX decisions_uncounted ON decisions (pool, epoch, number) WHERE bytes_until IS NULL;
