"""A PPO agent with a C51 critic in plain NumPy, whose policy is distilled from that critic by the library.

`qpi-distill demo` runs it. In reading order: `config` (every number), `networks`, `ppo` and `critic` (the mathematics),
`distill` (where the library is called), `envs`, `agent` (the loop), `jobs` (runs in worker processes), `terminal`,
`report` and `plots` (what is shown), `main` (what the command does).

Needs the extra: ``pip install "qpi-distill[demo]"``. Importing this package does not.
"""
