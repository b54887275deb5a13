"""Checks `cargo metadata`, read from standard input, against deny.toml: a stand-in for cargo-deny."""

import json
import re
import sys
import tomllib

with open("deny.toml", "rb") as file:
    rules = tomllib.load(file)
metadata = json.load(sys.stdin)
packages = {package["id"]: package for package in metadata["packages"]}
allowed = set(rules["licenses"]["allow"])
def users(package):
    """The names of the packages that depend on this one directly; its own, where none does."""
    nodes = metadata["resolve"]["nodes"]
    found = {packages[node["id"]]["name"] for node in nodes if package in node["dependencies"]}
    return found or {packages[package]["name"]}


complaints = []


def satisfied(expression):
    """Whether the allowed licences fulfil an SPDX expression ("A/B" is old for "A OR B")."""
    tokens = re.findall(r"[()]|[\w.+-]+", expression.replace("/", " OR "))

    def either():
        result = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            result = both() or result
        return result

    def both():
        result = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            result = one() and result
        return result

    def one():
        token = tokens.pop(0)
        if token == "(":
            result = either()
            tokens.pop(0)
            return result
        if tokens and tokens[0] == "WITH":
            token += " WITH " + tokens[1]
            del tokens[:2]
        return token in allowed

    return either() and not tokens


for package in packages.values():
    name = f'{package["name"]} {package["version"]}'
    if not package["license"] or not satisfied(package["license"]):
        complaints.append(f'{name}: licence {package["license"]}')
    if package["source"] and not package["source"].startswith("registry+"):
        complaints.append(f'{name}: comes from {package["source"]}')
    for ban in rules["bans"]["deny"]:
        if package["name"] == ban["crate"] and users(package["id"]) - set(ban.get("wrappers", [])):
            complaints.append(f'{name}: {ban["reason"]}')

for node in metadata["resolve"]["nodes"]:
    for rule in rules["bans"]["features"]:
        if packages[node["id"]]["name"] == rule["crate"]:
            for feature in set(node["features"]) & set(rule["deny"]):
                complaints.append(f'{rule["crate"]}: feature {feature}: {rule["reason"]}')

print("\n".join(complaints) or f"{len(packages)} packages: nothing to say")
sys.exit(bool(complaints))
