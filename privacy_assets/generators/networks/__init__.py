"""Networks and training of the neural generators. Everything in here imports torch."""
