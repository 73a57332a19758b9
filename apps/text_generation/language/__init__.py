"""Models of text, byte by byte: texts, presets, measures, training."""
