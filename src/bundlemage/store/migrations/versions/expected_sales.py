"""How often a new bundle is expected to sell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "3"
down_revision = "2"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("bundles", sa.Column("expected_sales", sa.Double))
    op.add_column(
        "bundles",
        sa.Column("sells_like", sa.String().with_variant(sa.String(collation="C"), "postgresql")),
    )
