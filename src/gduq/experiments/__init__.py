"""From a config to a result on disk."""
