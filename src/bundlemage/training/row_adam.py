"""Adam for tables of which a step touches few rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class RowAdam(torch.optim.Optimizer):
    """Adam that, where a gradient is sparse, moves the rows that are in it and no others.

    Its memory of a row begins when the row is first touched, so both time and memory follow what is touched,
    not what exists. A row counts its own steps. Where a gradient is dense this is Adam as everyone knows it.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    self._move_rows(parameter, parameter.grad.coalesce(), group)
                else:
                    self._move(parameter, group)

    def rows_of(self, parameter: Tensor) -> tuple[Tensor, Tensor] | None:
        """The rows that the last step moved, and how often each has been; None if it was all of them."""
        if parameter.grad is None or not parameter.grad.is_sparse:
            return None
        state = self.state[parameter]
        rows = parameter.grad.coalesce().indices()[0]
        return rows, state["steps"][state["slot_of"][rows]]

    def _move(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["steps"] = torch.zeros((), device=parameter.device)
            state["mean"], state["square"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["steps"] += 1
        change = self._change(
            parameter, parameter.grad, state["mean"], state["square"], state["steps"], group
        )
        parameter.sub_(change)

    def _move_rows(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        rows = gradient.indices()[0]
        slots = self._slots(parameter, rows)
        state = self.state[parameter]
        state["steps"][slots] += 1
        mean, square, steps = state["mean"][slots], state["square"][slots], state["steps"][slots]
        change = self._change(parameter[rows], gradient.values(), mean, square, steps[:, None], group)
        state["mean"][slots], state["square"][slots] = mean, square
        parameter[rows] -= change

    @staticmethod
    def _change(
        weights: Tensor,
        gradient: Tensor | None,
        mean: Tensor,
        square: Tensor,
        steps: Tensor,
        group: dict[str, Any],
    ) -> Tensor:
        """Adam's step (Kingma and Ba, 2015), both its averages moved on in place."""
        assert gradient is not None
        first, second = group["betas"]
        slope = gradient + group["weight_decay"] * weights
        mean.lerp_(slope, 1 - first)
        square.lerp_(slope.square(), 1 - second)
        length = (square / (1 - second**steps)).sqrt_().add_(group["eps"])
        step: Tensor = (mean / (1 - first**steps)).div_(length).mul_(group["lr"])
        return step

    def _slots(self, parameter: Tensor, rows: Tensor) -> Tensor:
        """Where the memory of each row is, with room made for those that have none."""
        state = self.state[parameter]
        if not state:
            nothing = parameter.new_zeros(0, *parameter.shape[1:])
            state["slot_of"] = torch.full((len(parameter),), -1, dtype=torch.int32, device=parameter.device)
            state["mean"], state["square"], state["steps"] = nothing, nothing.clone(), nothing.new_zeros(0)
            state["taken"] = torch.zeros((), dtype=torch.int64)
        new = rows[state["slot_of"][rows] < 0]
        if len(new):
            taken = int(state["taken"])
            needed, room = taken + len(new), len(state["steps"])
            if needed > room:
                more = min(len(parameter), max(needed, 2 * room)) - room
                for name in ("mean", "square", "steps"):
                    held = state[name]
                    state[name] = torch.cat([held, held.new_zeros(more, *held.shape[1:])])
            state["slot_of"][new] = torch.arange(taken, needed, dtype=torch.int32, device=parameter.device)
            state["taken"].fill_(needed)
        slots: Tensor = state["slot_of"][rows].long()
        return slots

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for index, saved in state_dict["state"].items():
            state = self.state[parameters[int(index)]]
            if "slot_of" in saved:  # the general way turns whole numbers into those of the weights
                state["slot_of"] = saved["slot_of"].to(parameters[int(index)].device)
                state["taken"] = saved["taken"].cpu()
