"""The cabinet of faults: bugs of serving engines and others, planted, with the laws that may catch each."""
