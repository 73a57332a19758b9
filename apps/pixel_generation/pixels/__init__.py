"""What the scripts beside this package share: data, presets, training, generation, measuring."""
