"""Train, predict, calibrate, judge, save: the whole library on data made on the spot."""

# %% Data whose test graphs come from another distribution than its training graphs
import gduq

splits = gduq.data.load("motif/basis/covariate", limit=600)
print(splits.description)
channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)

# %% A network, trained as always; then its head learns to read anchors, and the rest stays
net = gduq.nn.GNN(channels, 32, classes, num_layers=3, conv="gin", head="mlp")
gduq.fit(net, splits.train, splits.id_val, epochs=5, progress=False)
model = gduq.anchor(net, freeze=True, num_anchors=10)
history = gduq.fit(model, splits.train, splits.id_val, epochs=2, progress=False)

# %% Ten hypotheses about every graph
p = gduq.predict(model, splits.ood_test)
print("samples [K, m, C]:", list(p.samples.shape))
print("confidence of the first graph:", round(p.confidence[0].item(), 3))
print("how much its hypotheses disagree:", round(p.epistemic[0].item(), 4))

# %% Calibrate on validation data, judge under shift
cal = gduq.calibration.TemperatureScaling().fit(gduq.predict(model, splits.id_val))
for name, q in {"as trained": p, "calibrated": cal(p)}.items():
    accuracy, ece = gduq.metrics.accuracy(q), gduq.metrics.ece(q, strict=False)
    print(f"{name}: accuracy {accuracy:.3f}, expected calibration error {ece:.3f}")

# %% Keep it: safetensors and JSON, never pickle
folder = gduq.save(model, "out/tutorial-model", calibrator=cal, class_names=splits.class_names)
again, again_cal = gduq.load(folder)
assert (gduq.predict(again, splits.ood_test).samples == p.samples).all()
