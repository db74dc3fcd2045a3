"""Long seeded campaigns of runs on grown pools, and the ledger of the runs that were played."""
