"""A network that is already trained: keep it, and train only what reads the anchors."""

# %% Somebody's trained network
import gduq

splits = gduq.data.load("motif/basis/covariate", limit=600)
channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
net = gduq.nn.GNN(channels, 32, classes, num_layers=3, conv="gin", head="mlp")
gduq.fit(net, splits.train, splits.id_val, epochs=5, progress=False)
before = gduq.predict(net, splits.id_test)

# %% Its head reads the pair now, and starts where it was; all before it is frozen and cached
model = gduq.anchor(net, freeze=True)
trainable = sum(w.numel() for w in model.parameters() if w.requires_grad)
print(f"{trainable} of {sum(w.numel() for w in model.parameters())} parameters are trained")
gduq.fit(model, splits.train, splits.id_val, epochs=10, lr=3e-3, progress=False)
after = gduq.predict(model, splits.id_test)
for name, p in {"network": before, "anchored": after}.items():
    print(f"{name}: accuracy {gduq.metrics.accuracy(p):.3f}, hypotheses {p.num_samples}")

# %% The network itself was copied, not changed
assert (gduq.predict(net, splits.id_test).samples == before.samples).all()

# %% init="identity": the same answers as the network for every anchor, until it is trained on
same = gduq.anchor(net, at="readout", init="identity").fit_bank(splits.train)
p = gduq.predict(same, splits.id_test)
print("largest change of a logit:", float((p.logits - before.logits).abs().max()))
print("largest disagreement:", float(p.epistemic.max()))
