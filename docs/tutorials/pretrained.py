"""A network that is already trained: keep it, and train only what reads the anchors."""

# %% Somebody's trained network
import torch

import gduq

splits = gduq.data.load("motif/basis/covariate", limit=600)
channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
torch.manual_seed(0)
net = gduq.nn.GNN(channels, 32, classes, num_layers=3, conv="gin", head="mlp")
gduq.fit(net, splits.train, splits.id_val, epochs=30, lr=3e-3, calibrate=None, progress=False)
before = gduq.predict(net, splits.id_test)

# %% Its head reads the pair now, and starts where it was: the same answers for every anchor
model = gduq.anchor(net)
start = gduq.predict(model, splits.id_test)
print("largest change of a logit:", float((start.logits - before.logits).abs().max()))

# %% Only the head is trained; the network runs once over the data
trainable = sum(w.numel() for w in model.parameters() if w.requires_grad)
print(f"{trainable} of {sum(w.numel() for w in model.parameters())} parameters are trained")
history = gduq.fit(model, splits.train, splits.id_val, progress=False)
print(history)
after = gduq.predict(model, splits.id_test)
for name, p in {"network": before, "anchored": after}.items():
    accuracy, nll = gduq.metrics.accuracy(p), gduq.metrics.nll(p)
    print(f"{name}: accuracy {accuracy:.3f}, negative log-likelihood {nll:.3f}, {p.calibrated}")

# %% The network itself was copied, not changed
assert (gduq.predict(net, splits.id_test).samples == before.samples).all()

# %% With more time: train the whole network on, with anchors at its last layer
thawed = gduq.anchor(net, recipe="thawed")
gduq.fit(thawed, splits.train, splits.id_val, epochs=8, lr=3e-3, progress=False)
p = gduq.predict(thawed, splits.id_test)
print(f"thawed: accuracy {gduq.metrics.accuracy(p):.3f}, hypotheses {p.num_samples}")
