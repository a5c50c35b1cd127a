"""gduq: uncertainty people can trust for graph neural networks, from one trained network."""
