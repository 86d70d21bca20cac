CREATE TABLE bundlemage_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT bundlemage_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE models (
    version VARCHAR COLLATE "C" NOT NULL,
    path TEXT NOT NULL,
    name TEXT NOT NULL,
    metrics TEXT NOT NULL,
    published_at BIGINT NOT NULL,
    CONSTRAINT pk_models PRIMARY KEY (version)
);
CREATE TABLE clock (
    id INTEGER NOT NULL,
    catalogue BIGINT NOT NULL,
    model VARCHAR COLLATE "C",
    CONSTRAINT pk_clock PRIMARY KEY (id),
    CONSTRAINT fk_clock_model FOREIGN KEY(model) REFERENCES models (version)
);
INSERT INTO clock (id, catalogue, model) VALUES (1, 0, NULL);
CREATE TABLE items (
    id VARCHAR COLLATE "C" NOT NULL,
    title TEXT,
    price DOUBLE PRECISION,
    tags TEXT NOT NULL,
    stock BIGINT,
    withdrawn BOOLEAN NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT pk_items PRIMARY KEY (id)
);
CREATE INDEX ix_items_version ON items (version);
CREATE TABLE bundles (
    id VARCHAR COLLATE "C" NOT NULL,
    title TEXT,
    price DOUBLE PRECISION,
    discount DOUBLE PRECISION,
    tags TEXT NOT NULL,
    withdrawn BOOLEAN NOT NULL,
    version BIGINT NOT NULL,
    CONSTRAINT pk_bundles PRIMARY KEY (id)
);
CREATE INDEX ix_bundles_version ON bundles (version);
CREATE TABLE bundle_item (
    bundle_id VARCHAR COLLATE "C" NOT NULL,
    position INTEGER NOT NULL,
    item_id VARCHAR COLLATE "C" NOT NULL,
    CONSTRAINT pk_bundle_item PRIMARY KEY (bundle_id, position),
    CONSTRAINT fk_bundle_item_bundle_id FOREIGN KEY(bundle_id) REFERENCES bundles (id),
    CONSTRAINT fk_bundle_item_item_id FOREIGN KEY(item_id) REFERENCES items (id)
);
CREATE TABLE user_item (
    user_id VARCHAR COLLATE "C" NOT NULL,
    item_id VARCHAR COLLATE "C" NOT NULL,
    at BIGINT,
    request_id TEXT,
    CONSTRAINT pk_user_item PRIMARY KEY (user_id, item_id),
    CONSTRAINT fk_user_item_item_id FOREIGN KEY(item_id) REFERENCES items (id)
);
CREATE INDEX ix_user_item_item_id ON user_item (item_id);
CREATE TABLE user_bundle (
    user_id VARCHAR COLLATE "C" NOT NULL,
    bundle_id VARCHAR COLLATE "C" NOT NULL,
    at BIGINT,
    request_id TEXT,
    CONSTRAINT pk_user_bundle PRIMARY KEY (user_id, bundle_id),
    CONSTRAINT fk_user_bundle_bundle_id FOREIGN KEY(bundle_id) REFERENCES bundles (id)
);
CREATE INDEX ix_user_bundle_bundle_id ON user_bundle (bundle_id);
CREATE TABLE served (
    number BIGSERIAL NOT NULL,
    request_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    user_id VARCHAR COLLATE "C",
    model TEXT NOT NULL,
    ids TEXT NOT NULL,
    at BIGINT NOT NULL,
    CONSTRAINT pk_served PRIMARY KEY (number)
);
CREATE INDEX ix_served_user_id ON served (user_id);
CREATE INDEX ix_served_at ON served (at);
CREATE TABLE keys (
    id VARCHAR COLLATE "C" NOT NULL,
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BYTEA NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    CONSTRAINT pk_keys PRIMARY KEY (id)
);
CREATE TABLE sessions (
    digest BYTEA NOT NULL,
    key_id VARCHAR COLLATE "C" NOT NULL,
    expires_at BIGINT NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (digest),
    CONSTRAINT fk_sessions_key_id FOREIGN KEY(key_id) REFERENCES keys (id)
);
CREATE TABLE idempotency (
    caller VARCHAR COLLATE "C" NOT NULL,
    key VARCHAR COLLATE "C" NOT NULL,
    digest BYTEA NOT NULL,
    "new" INTEGER NOT NULL,
    known INTEGER NOT NULL,
    at BIGINT NOT NULL,
    CONSTRAINT pk_idempotency PRIMARY KEY (caller, key)
);
CREATE INDEX ix_idempotency_at ON idempotency (at);
INSERT INTO bundlemage_version (version_num) VALUES ('1');
