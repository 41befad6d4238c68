"""Parts that every model is built from: attention layers, positions, transformers, pooling, dropout."""
