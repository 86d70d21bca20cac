"""The first tables. They are written out here, because `store.models` will change."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "1"
down_revision = None
branch_labels = None
depends_on = None


def _name() -> TypeEngine[str]:
    return sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    _catalogue()
    _histories()
    _service()


def _catalogue() -> None:
    op.create_table(
        "models",
        sa.Column("version", _name(), primary_key=True),
        sa.Column("path", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("metrics", sa.Text, nullable=False),
        sa.Column("published_at", sa.BigInteger, nullable=False),
    )
    clock = op.create_table(
        "clock",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("catalogue", sa.BigInteger, nullable=False),
        sa.Column("model", _name(), sa.ForeignKey("models.version")),
    )
    op.bulk_insert(clock, [{"id": 1, "catalogue": 0, "model": None}])
    op.create_table(
        "items",
        sa.Column("id", _name(), primary_key=True),
        sa.Column("title", sa.Text),
        sa.Column("price", sa.Double),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("stock", sa.BigInteger),
        sa.Column("withdrawn", sa.Boolean, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "bundles",
        sa.Column("id", _name(), primary_key=True),
        sa.Column("title", sa.Text),
        sa.Column("price", sa.Double),
        sa.Column("discount", sa.Double),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("withdrawn", sa.Boolean, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "bundle_item",
        sa.Column("bundle_id", _name(), sa.ForeignKey("bundles.id"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("item_id", _name(), sa.ForeignKey("items.id"), nullable=False),
        sqlite_with_rowid=False,
    )


def _histories() -> None:
    for thing in ("item", "bundle"):
        op.create_table(
            f"user_{thing}",
            sa.Column("user_id", _name(), primary_key=True),
            sa.Column(f"{thing}_id", _name(), sa.ForeignKey(f"{thing}s.id"), primary_key=True, index=True),
            sa.Column("at", sa.BigInteger),
            sa.Column("request_id", sa.Text),
            sqlite_with_rowid=False,
        )


def _service() -> None:
    op.create_table(
        "served",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("user_id", _name(), index=True),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("ids", sa.Text, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False, index=True),
    )
    op.create_table(
        "keys",
        sa.Column("id", _name(), primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("revoked_at", sa.BigInteger),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.LargeBinary, primary_key=True),
        sa.Column("key_id", _name(), sa.ForeignKey("keys.id"), nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "idempotency",
        sa.Column("caller", _name(), primary_key=True),
        sa.Column("key", _name(), primary_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("new", sa.Integer, nullable=False),
        sa.Column("known", sa.Integer, nullable=False),
        sa.Column("at", sa.BigInteger, nullable=False, index=True),
    )
