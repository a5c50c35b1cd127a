"""From a trained model to decisions about files of graphs, in constant memory."""

# %% A model to deploy, with the names of its classes
from pathlib import Path

import gduq
from gduq.serve.files import predict_files
from gduq.serve.service import Service, Settings

splits = gduq.data.load("motif/basis/covariate", limit=600)
channels, classes = splits.train.graphs[0].x.size(1), len(splits.class_names)
net = gduq.nn.GNN(channels, 16, classes, num_layers=2)
gduq.fit(net, splits.train, splits.id_val, epochs=3, progress=False)
model = gduq.anchor(net)
gduq.fit(model, splits.train, splits.id_val, class_names=splits.class_names, progress=False)
out = Path("out/tutorial-deploy")
out.mkdir(parents=True, exist_ok=True)
gduq.save(model, out / "model")

# %% Graphs as files: what others send you, and labelled ones to set the thresholds
gduq.data.save(splits.ood_test.graphs, out / "new.safetensors")
gduq.data.save(splits.id_val.graphs, out / "known.safetensors")

# %% The same as: gduq predict model new.safetensors -o answers.csv --calibration-data known...
model, calibrator = gduq.load(out / "model")
service = Service(model, calibrator, splits.class_names, Settings(alpha=0.1, coverage=0.8))
service.refer_to(service.answer(list(gduq.data.read(out / "known.safetensors"))))
done = predict_files(service, [out / "new.safetensors"], out / "answers.csv")
print(f"{done.rows} rows, {done.abstained} of them to abstain from, {done.rejected} left out")
print("columns:", ", ".join(done.columns))
print(f"same distribution as the calibration data? p = {done.shift_pvalue:.1g}")
