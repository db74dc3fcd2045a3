#!/bin/sh
# A program of pymllm probe. Run it on a server that was just started: URL=http://... sh FILE
URL=${URL:-http://127.0.0.1:8080}

# request 19
curl -sS "$URL/completion" -H "Content-Type: application/json" -d '{"prompt":[61,69,76,103,69,43,43,39,112,92,123,97,34,94,105,100,79,65,75,107,57,81,77,122,108,120,111,60,54,78,56,72,96,119,87,109,41,65,126,45,71,38,40,117,125,93,44,60,54,95,96,73,81,42,83,122,103,41,81,99,56,117,75,98,70],"n_predict":1,"temperature":0,"n_probs":8,"cache_prompt":true,"return_tokens":true,"stream":false}'; echo

# request 21
curl -sS "$URL/completion" -H "Content-Type: application/json" -d '{"prompt":[99],"n_predict":1,"temperature":0,"n_probs":8,"cache_prompt":true,"return_tokens":true,"stream":false}'; echo

# request 22
curl -sS "$URL/completion" -H "Content-Type: application/json" -d '{"prompt":[61,69,76,103,69,43,43,39,112,92,123,97,34,94,105,100,79],"n_predict":1,"temperature":0,"n_probs":8,"cache_prompt":true,"return_tokens":true,"stream":false}'; echo

# cold: 22
curl -sS "$URL/completion" -H "Content-Type: application/json" -d '{"prompt":[61,69,76,103,69,43,43,39,112,92,123,97,34,94,105,100,79],"n_predict":1,"temperature":0,"n_probs":8,"cache_prompt":false,"return_tokens":true,"stream":false}'; echo
