"""The search for programs that break a law: state machines over operations, judged by the oracle."""
