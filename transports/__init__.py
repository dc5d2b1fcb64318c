"""How ranks talk: the backends, who started them, where they meet, who is alive."""
