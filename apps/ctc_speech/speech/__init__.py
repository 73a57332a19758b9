"""Phones from speech: audio, features, corpora, training, decoding."""
