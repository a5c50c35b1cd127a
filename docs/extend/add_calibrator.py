"""A calibrator: blend the probabilities of the mixture with even ones, by as much as pays."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

import gduq
from gduq.calibration import METHODS, Calibrator
from gduq.calibration.lesson import Lesson
from gduq.prediction import Prediction


@dataclass(eq=False)
class EvenBlend(Calibrator):
    r"""For one share :math:`0 \le v < 1` of all rows: :math:`p' = (1 - v) p + v / C`."""

    acts_on: ClassVar[Literal["mixture"]] = "mixture"  # the map says what its probabilities become
    takes_copies: ClassVar[bool] = True
    keeps_accuracy: ClassVar[bool] = True
    keeps_order: ClassVar[bool] = False  # of the mixture, not of each hypothesis
    defines_logits: ClassVar[bool] = False  # probabilities only
    state_names: ClassVar[tuple[str, ...]] = ("share",)

    def _fit(self, lesson: Lesson) -> dict[str, Tensor]:  # rows and copies, half the weight each
        right = lesson.logs.gather(1, lesson.target[:, None]).squeeze(1).exp()

        def nll(v: float) -> float:
            return -float(((1 - v) * right + v / lesson.num_classes).log() @ lesson.share)

        found = minimize_scalar(nll, bounds=(0.0, 0.999), method="bounded")
        return {"share": torch.tensor(found.x, dtype=torch.float64)}

    def _map(self, p: Prediction) -> Tensor:
        v = self._state["share"]
        return ((1 - v) * p.log_probs.double().cpu().exp() + v / p.num_classes).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"share": torch.tensor(0.0, dtype=torch.float64)}


if __name__ == "__main__":
    METHODS["even_blend"] = EvenBlend  # by this name evaluate, runs and bundles know it
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(600, 3, generator=generator)
    y = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    p = Prediction(4 * truth, y)  # four times as sure as it should be
    calibrator = EvenBlend().fit(p[:300])
    print(calibrator, gduq.metrics.nll(p[300:]), gduq.metrics.nll(calibrator(p[300:])), sep="\n")
