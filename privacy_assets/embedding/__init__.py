"""The contrastive embedder."""
