"""Learning from rewards: rollouts, what they are worth, and what is learned of them."""
