"""Models: inputs, encoder, reader and output put together. Start reading at :mod:`mapsto.models.mapper`."""
