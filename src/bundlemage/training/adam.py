"""The optimiser Adam (Kingma and Ba, 2015), for dense gradients and for sparse gradients of large tables.

PyTorch's Adam is not used: it takes seconds to import, and it keeps state for every row of a sparse table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8

Memory = dict[str, Tensor]
"""The state of one parameter: step counts and moving averages of the gradient, by name."""


class Adam:
    """Adam. If a gradient is sparse, a step changes only the rows that have a gradient.

    A row gets its state at its first step. So time and memory depend on the number of changed rows, not on
    the size of the table. Each row counts its own steps.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], rate: float, weight_decay: float = 0.0) -> None:
        self.parameters = list(parameters)
        self.rate: float | Tensor = rate
        """The learning rate. It is a tensor if steps are replayed: a replayed step reads it again."""
        self.weight_decay = weight_decay
        self.state: dict[nn.Parameter, Memory] = {}

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate."""
        if isinstance(self.rate, Tensor):
            self.rate.fill_(rate)
        else:
            self.rate = rate

    def forget_gradients(self) -> None:
        """Drops all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Updates all weights that have a gradient."""
        learned = [parameter for parameter in self.parameters if parameter.grad is not None]
        dense = [parameter for parameter in learned if not _gradient(parameter).is_sparse]
        if dense:
            self._move(dense)
        for parameter in learned:
            if _gradient(parameter).is_sparse:
                self._move_rows(parameter, _gradient(parameter).coalesce())

    def rows_of(self, parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
        """Returns the rows that the last step changed, and their step counts; None if it changed all rows."""
        if parameter.grad is None or not parameter.grad.is_sparse:
            return None
        memory = self.state[parameter]
        rows = parameter.grad.coalesce().indices()[0]
        return rows, memory["steps"][memory["slot_of"][rows]]

    def _move(self, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "steps": torch.zeros((), device=parameter.device),
                    "mean": torch.zeros_like(parameter),
                    "square": torch.zeros_like(parameter),
                }
        memories = [self.state[parameter] for parameter in parameters]
        means, squares, steps = ([memory[key] for memory in memories] for key in ("mean", "square", "steps"))
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            list[Tensor](parameters),
            [_gradient(parameter) for parameter in parameters],
            means,
            squares,
            [],
            steps,
            lr=self.rate,
            beta1=FIRST,
            beta2=SECOND,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _move_rows(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        rows = gradient.indices()[0]
        slots = self._slots(parameter, rows)
        memory = self.state[parameter]
        memory["steps"][slots] += 1
        mean, square, steps = memory["mean"][slots], memory["square"][slots], memory["steps"][slots][:, None]
        slope = gradient.values() + self.weight_decay * parameter[rows]
        mean.lerp_(slope, 1 - FIRST)
        square.lerp_(slope.square(), 1 - SECOND)
        memory["mean"][slots], memory["square"][slots] = mean, square
        # This is 1 − β^steps. Computed directly in float32, it would lose its digits.
        young_mean, young_square = (-torch.expm1(steps * math.log(decay)) for decay in (FIRST, SECOND))
        length = (square / young_square).sqrt_().add_(EPSILON)
        parameter[rows] -= (mean / young_mean).div_(length).mul_(self.rate)

    def _slots(self, parameter: nn.Parameter, rows: Tensor) -> Tensor:
        """Returns the index of each row's state. Adds a state for rows that have none."""
        if parameter not in self.state:
            nothing = torch.zeros_like(parameter[:0])
            self.state[parameter] = {
                "slot_of": torch.full((len(parameter),), -1, dtype=torch.int32, device=parameter.device),
                "taken": torch.zeros((), dtype=torch.int64),
                "mean": nothing,
                "square": nothing.clone(),
                "steps": nothing.new_zeros(0),
            }
        memory = self.state[parameter]
        new = rows[memory["slot_of"][rows] < 0]
        if len(new):
            taken = int(memory["taken"])
            needed, room = taken + len(new), len(memory["steps"])
            if needed > room:
                more = min(len(parameter), max(needed, 2 * room)) - room
                for key in ("mean", "square", "steps"):
                    held = memory[key]
                    memory[key] = torch.cat([held, held.new_zeros(more, *held.shape[1:])])
            memory["slot_of"][new] = torch.arange(taken, needed, dtype=torch.int32, device=rows.device)
            memory["taken"].fill_(needed)
        return memory["slot_of"][rows].long()

    # ── Saving and loading ────────────────────────────────────────────────────────────────────────────

    def tensors(self) -> Memory:
        """Returns the state as tensors named `N.key`: N is the index of the parameter."""
        return {
            f"{place}.{key}": tensor
            for place, parameter in enumerate(self.parameters)
            for key, tensor in self.state.get(parameter, {}).items()
        }

    def load(self, tensors: Memory) -> None:
        """Continues from a state that `tensors` returned."""
        self.state = {}
        for name, tensor in tensors.items():
            place, _, key = name.partition(".")
            parameter = self.parameters[int(place)]
            if key not in ("steps", "mean", "square", "slot_of", "taken"):
                raise ValueError(f"the optimiser has no {name}")
            by_rows = f"{place}.slot_of" in tensors
            if key in ("mean", "square") and tensor.shape[by_rows:] != parameter.shape[by_rows:]:
                raise ValueError(f"the optimiser's {name} has the shape {list(tensor.shape)}")
            where = tensor.device if key == "taken" else parameter.device
            self.state.setdefault(parameter, {})[key] = tensor.to(where, copy=True)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
