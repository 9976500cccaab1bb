"""Makes the service config, which tells gRPC how to retry and balance calls when servers fail.

Infer, ListModels and GetModel change nothing on a server. So gRPC may retry them if the server is UNAVAILABLE: it
cannot be reached, the connection broke, the server is shutting down, its GPU or its model failed (those of another
server may work), or the model is loading (then gRPC waits as long as the server asks). The deadline covers all attempts
together. A call to an overloaded server (RESOURCE_EXHAUSTED) is not retried, since that would add load.
Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
"""

from __future__ import annotations

import json

MAX_ATTEMPTS = 5  # gRPC makes no more attempts, even if a service config asks for them
_SERVICE = "voxserve.v1.InferenceService"
_RETRIED = ("Infer", "ListModels", "GetModel")
_SCHEMES = ("dns:", "ipv4:", "ipv6:")  # the schemes of addresses that may name several servers


def names_servers(address: str) -> bool:
    """Returns whether the address has a scheme that may name several servers, over which calls are balanced."""
    return address.startswith(_SCHEMES)


def service_config(address: str, max_attempts: int) -> str:
    """Returns gRPC's service config in JSON."""
    config: dict[str, object] = {}
    if names_servers(address):
        # gRPC uses the first policy of the list that the installed version knows.
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
