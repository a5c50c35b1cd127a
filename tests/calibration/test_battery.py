"""The shared battery for all thirteen calibrators for classes."""

from __future__ import annotations

from gduq import calibration
from tests.calibration.battery import CalibratorBattery


class TestTemperatureScaling(CalibratorBattery):
    def make(self, case):
        return calibration.TemperatureScaling()


class TestEnsembleTemperatureScaling(CalibratorBattery):
    def make(self, case):
        return calibration.EnsembleTemperatureScaling()


class TestVectorScaling(CalibratorBattery):
    def make(self, case):
        return calibration.VectorScaling()


class TestMatrixScaling(CalibratorBattery):
    def make(self, case):
        return calibration.MatrixScaling()


class TestDirichletCalibration(CalibratorBattery):
    def make(self, case):
        return calibration.DirichletCalibration()


class TestIsotonicCalibration(CalibratorBattery):
    def make(self, case):
        return calibration.IsotonicCalibration()


class TestHistogramBinning(CalibratorBattery):
    def make(self, case):
        return calibration.HistogramBinning(bins=5)


class TestHistogramBinningOfEqualMass(CalibratorBattery):
    def make(self, case):
        return calibration.HistogramBinning(bins=5, scheme="mass")


class TestSplineCalibration(CalibratorBattery):
    def make(self, case):
        return calibration.SplineCalibration()


class TestOrderInvariantCalibration(CalibratorBattery):
    def make(self, case):
        return calibration.OrderInvariantCalibration()


class TestDensityAwareCalibration(CalibratorBattery):
    def make(self, case):
        return calibration.DensityAwareCalibration(train=case.p[case.train])


class TestAnchorAwareTemperature(CalibratorBattery):
    def make(self, case):
        return calibration.AnchorAwareTemperature()


class TestCaGCN(CalibratorBattery):
    def make(self, case):
        return calibration.CaGCN(case.graph)


class TestGATS(CalibratorBattery):
    def make(self, case):
        return calibration.GATS(case.graph, train_rows=case.train)


def test_every_method_has_the_battery():
    tested = {name for name in globals() if name.startswith("Test")}
    assert {f"Test{cls.__name__}" for cls in calibration.methods_for("classes").values()} <= tested
