"""Makes the service config, which tells gRPC how to retry and balance calls when servers fail.

Infer, ListModels and GetModel change nothing on a server, so gRPC may make them again where a server is UNAVAILABLE: it
cannot be reached, the connection broke, it drains, its GPU or the model there failed (another server's may be well), or
its model is loading (then after the time that it asks for). The deadline holds for all attempts together. An overloaded
server (RESOURCE_EXHAUSTED) is not asked again: that would add load.
https://github.com/grpc/proposal/blob/master/A6-client-retries.md
"""

from __future__ import annotations

import json

MAX_ATTEMPTS = 5  # gRPC's own limit
_SERVICE = "voxserve.v1.InferenceService"
_RETRIED = ("Infer", "ListModels", "GetModel")
_SCHEMES = ("dns:", "ipv4:", "ipv6:")  # of addresses that may name several servers


def names_servers(address: str) -> bool:
    """Whether the address has a scheme that may name several servers, among which calls are balanced."""
    return address.startswith(_SCHEMES)


def service_config(address: str, max_attempts: int) -> str:
    """Returns gRPC's service config in JSON."""
    config: dict[str, object] = {}
    if names_servers(address):
        # gRPC takes the first policy that it knows.
        config["loadBalancingConfig"] = [{"weighted_round_robin": {}}, {"round_robin": {}}]
    if max_attempts > 1:
        policy = {
            "maxAttempts": max_attempts,
            "initialBackoff": "0.1s",
            "maxBackoff": "1s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        names = [{"service": _SERVICE, "method": method} for method in _RETRIED]
        config["methodConfig"] = [{"name": names, "retryPolicy": policy}]
    return json.dumps(config)
