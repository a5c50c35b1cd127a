"""Train, anchor, predict, judge, save: the whole library on data made on the spot."""

# %% Data whose test graphs come from another distribution than its training graphs
import torch

import gduq

splits = gduq.data.load("motif/basis/covariate", limit=600)
print(splits.description)
channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)

# %% A network, trained as always
torch.manual_seed(0)
net = gduq.nn.GNN(channels, 32, classes, num_layers=3, conv="gin")
gduq.fit(net, splits.train, splits.id_val, epochs=30, lr=3e-3, progress=False)

# %% Its head learns to read anchors; the rest stays. Then the model is calibrated
model = gduq.anchor(net)
gduq.fit(model, splits.train, splits.id_val, class_names=splits.class_names, progress=False)
print(model)

# %% Ten hypotheses about every graph
p = gduq.predict(model, splits.ood_test)
print("samples [K, m, C]:", list(p.samples.shape))
print("confidence of the first graph:", round(p.confidence[0].item(), 3))
print("how much its hypotheses disagree:", round(p.epistemic[0].item(), 4))
print("how unlike the training data it is, 0 to 1:", round(p.novelty[0].item(), 2))

# %% Judge under shift
for split in ("id_test", "ood_test"):
    for name, one in {"network": net, "anchored": model}.items():
        q = gduq.predict(one, getattr(splits, split))
        accuracy, nll = gduq.metrics.accuracy(q), gduq.metrics.nll(q)
        print(f"{split}, {name}: accuracy {accuracy:.3f}, negative log-likelihood {nll:.3f}")

# %% Keep it: safetensors and JSON, never pickle; calibration and novelty are in it
path = gduq.save(model, "out/tutorial-model")
again, _ = gduq.load(path)
assert (gduq.predict(again, splits.ood_test).samples == p.samples).all()
