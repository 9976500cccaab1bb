{{/*
Does to objects what the kustomization.yaml files of manifests/ ask for: those kinds of patches that they have, no more.
All templates change the objects that they get, and print nothing.
*/}}

{{/* Does one operation of a JSON patch: add to the end of a list, add or replace a key, or remove a key. Arguments:
object, op. */}}
{{- define "voxserve.operation" -}}
{{- $path := splitList "/" (trimPrefix "/" .op.path) -}}
{{- $here := .object -}}
{{- $owner := dict -}}
{{- $key := "" -}}
{{- range initial $path -}}
  {{- $owner = $here -}}
  {{- $key = . -}}
  {{- if kindIs "slice" $owner -}}{{- $here = index $owner (int .) -}}{{- else -}}{{- $here = get $owner . -}}{{- end -}}
{{- end -}}
{{- $last := last $path -}}
{{- if eq $last "-" -}}{{- $_ := set $owner $key (append $here .op.value) -}}
{{- else if eq .op.op "remove" -}}{{- $_ := unset $here $last -}}
{{- else -}}{{- $_ := set $here $last .op.value -}}
{{- end -}}
{{- end -}}

{{/* Merges a patch of an object into it. The container's mounts and the pod's volumes are added to, and go first; other
lists are replaced. Arguments: object, patch. */}}
{{- define "voxserve.merge" -}}
{{- if eq .object.kind "Deployment" -}}
  {{- $pod := .object.spec.template.spec -}}
  {{- $new := .patch.spec.template.spec -}}
  {{- $container := index $pod.containers 0 -}}
  {{- $changes := index $new.containers 0 -}}
  {{- $mounts := concat ($changes.volumeMounts | default list) $container.volumeMounts -}}
  {{- $volumes := concat ($new.volumes | default list) $pod.volumes -}}
  {{- $_ := mergeOverwrite $container (omit $changes "volumeMounts") (dict "volumeMounts" $mounts) -}}
  {{- $_ := mergeOverwrite $pod (omit $new "containers" "volumes") (dict "volumes" $volumes) -}}
{{- else -}}
  {{- $_ := mergeOverwrite .object .patch -}}
{{- end -}}
{{- end -}}
