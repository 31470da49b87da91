"""An OpenAI-style API over the engine: the protocol, the engine in a process of its own, the chat page."""
