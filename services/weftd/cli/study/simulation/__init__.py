"""The parts of `weft simulate`.

`options` has the options, `plan` makes runs of them, `inputs` reads or generates what they run on, `running`
runs them, `results` shows what came out.
"""
