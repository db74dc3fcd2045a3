"""Machines that generate calls to an adapter from small integers and have a judge check each outcome."""
