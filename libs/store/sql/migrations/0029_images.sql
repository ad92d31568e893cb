-- Images that an administrator pushed, for nodes that reach no registry which has them. The gateway alone writes and
-- reads them.

CREATE TABLE pushed_images (
    id        text PRIMARY KEY,
    name      text NOT NULL,
    digest    text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),  -- SHA-256 of all pieces in a row
    bytes     bigint NOT NULL CHECK (bytes > 0),
    whole     boolean NOT NULL DEFAULT false,
    pushed_at timestamptz NOT NULL,
    used_at   timestamptz NOT NULL                              -- of what is not whole: when a piece came last
);
CREATE INDEX pushed_images_by_name ON pushed_images (name);

CREATE TABLE pushed_image_pieces (
    image  text NOT NULL REFERENCES pushed_images ON DELETE CASCADE,
    number integer NOT NULL CHECK (number >= 0),
    data   bytea NOT NULL CHECK (octet_length(data) <= 524288),
    PRIMARY KEY (image, number)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON pushed_images TO weft_gateway;
GRANT SELECT, INSERT ON pushed_image_pieces TO weft_gateway;
