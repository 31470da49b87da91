"""The parts put together: decoders, encoder-decoders, recurrent models, and heads on them."""
