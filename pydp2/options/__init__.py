"""Define the options of services and jobs: names, defaults, values; the TOML file that holds them."""
