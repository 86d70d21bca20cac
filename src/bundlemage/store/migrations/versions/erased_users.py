"""The users who were erased recently."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "erased",
        sa.Column(
            "digest", sa.String().with_variant(sa.String(collation="C"), "postgresql"), primary_key=True
        ),
        sa.Column("at", sa.BigInteger, nullable=False, index=True),
    )
