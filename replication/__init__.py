"""The paper's claims, one record each; runs what they need, and reports what came out."""
