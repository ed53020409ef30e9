"""Networks and training of the neural generators. All modules import torch."""
