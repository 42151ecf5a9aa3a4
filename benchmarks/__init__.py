"""Programs that measure Strandline beside a floor or a peer, in one run. `make bench` runs all."""
