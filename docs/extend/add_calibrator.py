"""A calibrator: blend the probabilities of the mixture with even ones, by as much as pays."""

from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

import gduq
from gduq.calibration import METHODS, CalibrationSet
from gduq.calibration.base import MixtureCalibrator
from gduq.prediction import ClassPrediction


@dataclass(eq=False)
class EvenBlend(MixtureCalibrator):
    r"""For one share :math:`0 \le v < 1` of all rows: :math:`p' = (1 - v) p + v / C`."""

    def _fit(self, data: CalibrationSet) -> dict[str, Tensor]:
        probs = data.log_probs.exp()
        right, classes = probs.gather(1, data.target[:, None]).squeeze(1), probs.size(1)

        def nll(v: float) -> float:
            return -float(((1 - v) * right + v / classes).log() @ data.share)

        found = minimize_scalar(nll, bounds=(0.0, 0.999), method="bounded")
        return {"share": torch.tensor(found.x, dtype=torch.float64)}

    def _map_mixture(self, logs: Tensor) -> Tensor:
        v = self._state["share"]
        return ((1 - v) * logs.exp() + v / logs.size(1)).log()

    def _neutral(self, num_classes: int) -> dict[str, Tensor]:
        return {"share": torch.tensor(0.0, dtype=torch.float64)}


if __name__ == "__main__":
    METHODS["even_blend"] = EvenBlend  # by this name evaluate, runs and bundles know it
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(600, 3, generator=generator)
    y = torch.multinomial(truth.softmax(dim=1), 1, generator=generator).squeeze(1)
    p = ClassPrediction(4 * truth, y)  # four times as sure as it should be
    calibrator = EvenBlend().fit(p[:300])
    print(calibrator, gduq.metrics.nll(p[300:]), gduq.metrics.nll(calibrator(p[300:])), sep="\n")
