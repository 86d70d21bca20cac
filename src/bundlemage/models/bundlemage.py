"""BundleMage, as in Section "Proposed Method" of the paper. Equations go by the paper's own labels."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from bundlemage.models.base import Histories, Interactions, Model, Phase, Sizes
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.graphs import Bipartite
from bundlemage.models.losses import multinomial_loss
from bundlemage.models.premix import Mixer, PreMix, feed_forward
from bundlemage.models.ragged import Ragged, mask_each_row, mask_whole_batch


class BundleMageConfig(LearnedConfig):
    """The paper's settings. Its ablations are settings too."""

    embedding_dim: int = Field(200, ge=2, multiple_of=2)
    """d, the length of every vector; even, as it is halved inside."""
    shared_fraction: float = Field(0.5, ge=0, le=1)
    """How much of an item's two embeddings is one and the same; 0 is the ablation -Sep, 1 is -Sha."""
    mixer: Mixer = "gate"
    """How item and bundle history are mixed; `average` is the ablation -Avg."""
    tasks: Literal["both", "matching", "generation"] = "both"
    """What is learned; `matching` is the ablation -Lgen, `generation` is -Lmat."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """On the user's vector z_u and on the pair's vector z_b^(u)."""
    mask_bundles: float = Field(0.5, ge=0, le=1)
    """ρ, how much of a user's bundles is hidden while they are being predicted."""
    mask_items: float = Field(0.5, ge=0, le=1)
    """ψ, how much of a bundle's items is hidden while they are being predicted."""
    masking: Literal["row", "batch"] = "batch"
    """`row` hides that share of every user and bundle, as the paper says; `batch` hides that share of
    a batch's entries wherever they fall, as the program behind the paper's tables did."""
    loss_weighting: Literal["sum", "mean"] = "sum"
    """`mean` divides by the number of a user's bundles and a bundle's items, as the equations do;
    `sum` does not, as the program behind the paper's tables did, and measures better."""

    hide_target: bool = True
    """Whether the bundle that is being completed is left out of its owner's history meanwhile, as a bundle
    that does not exist yet will be. The program behind the paper's tables left it in; hidden measures better.
    """


MATCHING = Phase("matching", over="users")
GENERATION = Phase("generation", over="user_bundle")


class BundleMage(Model):
    """Bundle matching and generation that share a part of the item embeddings."""

    name: ClassVar[str] = "bundlemage"
    title: ClassVar[str] = "BundleMage"
    publication: ClassVar[str] = (
        "Jeon, Jang, Kim and Kang, Accurate Bundle Matching and Generation via Multitask Learning with "
        "Partially Shared Parameters, PLoS ONE 2023"
    )
    config_class: ClassVar[type[ModelConfig]] = BundleMageConfig

    def __init__(self, config: BundleMageConfig, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.config = config
        dim = config.embedding_dim
        shared = round(dim * config.shared_fraction)
        self.item_shared = nn.Parameter(torch.empty(sizes.items, shared))
        self.item_matching = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.item_generation = nn.Parameter(torch.empty(sizes.items, dim - shared))
        self.premix = PreMix(dim, config.mixer)
        self.project_user = nn.Linear(dim, dim // 2)  # W², b²
        self.project_bundle = nn.Linear(dim, dim // 2)  # W³, b³
        self.join = feed_forward(dim)  # FNN²
        self.dropout = nn.Dropout(config.dropout)
        self._bundle_table: tuple[Ragged, Tensor] | None = None
        self._contents: Bipartite | None = None
        self.register_load_state_dict_post_hook(BundleMage._forget)  # type: ignore[no-untyped-call]
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        dim = self.config.embedding_dim
        # Xavier-normal over the whole [items, d] table, though it is stored in parts.
        spread = (2.0 / (self.sizes.items + dim)) ** 0.5
        for part in (self.item_shared, self.item_matching, self.item_generation):
            part.normal_(0, spread)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias, 0, 0.001)

    @property
    def matches(self) -> bool:
        return self.config.tasks != "generation"

    @property
    def generates(self) -> bool:
        return self.config.tasks != "matching"

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Each epoch first all matching batches, then all generation batches."""
        return (MATCHING,) * self.matches + (GENERATION,) * self.generates

    # ── Representations ──────────────────────────────────────────────────────────────────────────

    def matching_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_matching], dim=1)  # E¹ᵀ [items, d]

    def generation_embeddings(self) -> Tensor:
        return torch.cat([self.item_shared, self.item_generation], dim=1)  # E²ᵀ [items, d]

    def bundle_embeddings(self, contents: Ragged, item_table: Tensor | None = None) -> Tensor:
        """E¹XD⁻¹: a bundle is the mean of its items; an empty one is zero."""  # [bundles, d]
        if self.training:
            table = self.matching_embeddings() if item_table is None else item_table
            if self._contents is not None and self._contents.left is contents:
                return self._contents.mean_to_left(table)
            return contents.mean_of(table)
        # Outside training nothing changes, so the same contents need embedding only once.
        if self._bundle_table is None or self._bundle_table[0] is not contents:
            self._bundle_table = (contents, contents.mean_of(self.matching_embeddings()))
        return self._bundle_table[1]

    def train(self, mode: bool = True) -> BundleMage:
        self._forget()
        super().train(mode)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> BundleMage:  # moving or casting the weights
        self._forget()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _forget(self, *_: object) -> None:
        """Weights may change from here on. (A tensor's version does not tell: fused Adam leaves it alone.)"""
        self._bundle_table = None

    def history_vectors(
        self, items: Ragged, bundles: Ragged, item_table: Tensor, bundle_table: Tensor
    ) -> tuple[Tensor, Tensor]:
        from_items = items.mean_of(item_table)  # Eq. item_rep: p_u = E¹v_u / ‖v_u‖₁
        from_bundles = bundles.mean_of(bundle_table)  # Eq. bundle_rep: q_u = E¹XD⁻¹r̈_u / ‖r̈_u‖₁
        return from_items, from_bundles  # [rows, d] each

    def user_vectors(
        self, items: Ragged, bundles: Ragged, item_table: Tensor, bundle_table: Tensor
    ) -> Tensor:
        """Eq. gate: z_u."""
        p, q = self.history_vectors(items, bundles, item_table, bundle_table)
        z: Tensor = self.dropout(self.premix(p, q))
        return z  # [rows, d]

    def pair_vectors(self, users: Tensor, partial: Ragged, item_table: Tensor) -> Tensor:
        """Eq. pair_rep: z_b^(u) = FNN²([W²z_u + b²; W³z_b + b³])."""
        bundles = partial.mean_of(item_table)  # Eq. incomplete_bundle_rep: z_b = E²ẍ_b / ‖ẍ_b‖₁
        joined = torch.cat([self.project_user(users), self.project_bundle(bundles)], dim=1)
        z: Tensor = self.dropout(self.join(joined))
        return z  # [rows, d]

    # ── Learning ─────────────────────────────────────────────────────────────────────────────────

    def observe(self, data: Interactions) -> None:
        self._contents = Bipartite.of(data.bundle_item, self.sizes.items)

    def _mask(self, ragged: Ragged, ratio: float) -> Ragged:
        return (mask_each_row if self.config.masking == "row" else mask_whole_batch)(ragged, ratio)

    def loss(self, phase: Phase, rows: Tensor, data: Interactions) -> Tensor:
        return self.matching_loss(rows, data) if phase is MATCHING else self.generation_loss(rows, data)

    def matching_loss(self, users: Tensor, data: Interactions) -> Tensor:
        """Eq. matching_loss."""
        history = data.histories(users)
        item_table = self.matching_embeddings()
        bundle_table = self.bundle_embeddings(data.bundle_item, item_table)
        masked = self._mask(history.bundles, self.config.mask_bundles)  # r̈_u
        z = self.user_vectors(history.items, masked, item_table, bundle_table)
        weights = torch.ones_like(z[:, 0])
        if self.config.loss_weighting == "mean":
            weights = weights / history.bundles.lengths.clamp(min=1)  # 1 / ‖r_u‖₁
        return multinomial_loss(z, bundle_table, history.bundles, weights)

    def generation_loss(self, pairs: Tensor, data: Interactions) -> Tensor:
        """Eq. generation_loss."""
        users, targets = data.user_bundle.entries(pairs)
        history = data.histories(users)
        bundles = history.bundles
        if self.config.hide_target:
            bundles = bundles.keep(bundles.values != targets[bundles.row_of_entry()])
        item_table = self.matching_embeddings()
        bundle_table = self.bundle_embeddings(data.bundle_item, item_table)
        z_user = self.user_vectors(history.items, bundles, item_table, bundle_table)
        whole = data.bundle_item.rows(targets)  # x_b
        masked = self._mask(whole, self.config.mask_items)  # ẍ_b
        table = self.generation_embeddings()
        z = self.pair_vectors(z_user, masked, table)
        weights = torch.ones_like(z[:, 0])
        if self.config.loss_weighting == "mean":
            # A batch is of pairs and the equation's mean is over users: pairs / users evens that out.
            weights = weights * (len(data.user_bundle.values) / len(data.user_bundle))
            weights = weights / history.bundles.lengths / whole.lengths.clamp(min=1)  # 1 / ‖r_u‖₁ / ‖x_b‖₁
        return multinomial_loss(z, table, whole, weights)

    # ── Scoring ──────────────────────────────────────────────────────────────────────────────────

    def _encode(self, histories: Histories, contents: Ragged) -> Tensor:
        item_table, bundle_table = self.matching_embeddings(), self.bundle_embeddings(contents)
        return self.user_vectors(histories.items, histories.bundles, item_table, bundle_table)

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        """Eq. matching_prob before its softmax: (E¹XD⁻¹)ᵀz_u."""
        return self._encode(histories, contents) @ self.bundle_embeddings(contents).T  # [rows, bundles]

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        """Eq. reconstruction before its softmax: E²ᵀz_b^(u)."""
        table = self.generation_embeddings()
        return self.pair_vectors(self._encode(histories, contents), partial, table) @ table.T  # [rows, items]
