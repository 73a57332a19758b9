"""The backend "reference": the operators in plain torch, in linear time and bounded memory."""
