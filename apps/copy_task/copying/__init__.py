"""The copy task: sequences, model, measures, presets, training."""
