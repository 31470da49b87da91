"""Other people's evaluators on our engine: our tasks in their forms, and their findings in ours."""
