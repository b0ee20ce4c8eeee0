"""Keep the hosts of a service: sessions of agents, and the workers that they run."""
