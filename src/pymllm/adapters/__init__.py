"""Who is examined: implementations behind one small protocol, ours like anybody else's."""
