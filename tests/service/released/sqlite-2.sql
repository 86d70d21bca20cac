CREATE TABLE erased (
    digest VARCHAR NOT NULL,
    at BIGINT NOT NULL,
    CONSTRAINT pk_erased PRIMARY KEY (digest)
);
CREATE INDEX ix_erased_at ON erased (at);
UPDATE bundlemage_version SET version_num='2' WHERE bundlemage_version.version_num = '1';
